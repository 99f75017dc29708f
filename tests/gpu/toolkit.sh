# The toolkit's programs, its configuration, and the output of tests on a real GPU. Sourced with $container, the path to mpu-container, and
# $work. Changes into the work folder.
. "$here/report.sh"

mkdir -p "$work/bin" && cd "$work" || exit 3
for name in nvidia-container-runtime nvidia-container-runtime-hook nvidia-container-cli nvidia-ctk nvidia-cdi-hook; do
	ln -sf "$container" "bin/$name"
done
export PATH=$work/bin:$PATH NVIDIA_CTK_CONFIG_FILE_PATH=$work/config.toml

# configuration MODE: writes the toolkit's configuration for one mode.
configuration() {
	cat >config.toml <<-TOML
		[nvidia-container-runtime]
		mode = "$1"
		runtimes = ["runc"]
		debug = "$work/runtime.log"
		log-level = "debug"
		[nvidia-container-runtime-hook]
		path = "$work/bin/nvidia-container-runtime-hook"
		[nvidia-ctk]
		path = "$work/bin/nvidia-ctk"
	TOML
}
