# How a test on a real GPU talks: a headline, a command before its output, an answer that is right or wrong. Sourced; `$failed` is 1 after
# a wrong one.
failed=0

say() { printf '\n### %s\n' "$*"; }
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
