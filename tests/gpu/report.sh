# The output of tests on a real GPU: headlines, commands with their output, and check results. Sourced. After a failed check `$failed` is 1.
failed=0

headline() { printf '\n### %s\n' "$*"; }
show() {
	printf '$ %s\n' "$*"
	"$@" 2>&1
}
check() {
	if eval "$2"; then echo "ok: $1"; else
		echo "WRONG: $1"
		failed=1
	fi
}
