#!/bin/sh
# Builds Kubernetes' four programs from the source tree of Debian 12's package: build.sh GOROOT GOPATH VERSION OUT.
# The tree is at GOPATH/src/k8s.io/kubernetes; vendored packages build only in GOPATH mode.
set -eu
export PATH="$1/bin:/usr/bin:/bin" GOROOT="$1" GOPATH="$2" GOCACHE="$2/cache" GO111MODULE=off CGO_ENABLED=0 GOFLAGS=-trimpath
version=$3 out=$4
cd "$2/src/k8s.io/kubernetes"
# Since Go 1.18 the runtime writes to an iterator that the caller allocates. The vendored reflect2 expects the
# runtime's own, and crashes on maps.
map=vendor/github.com/modern-go/reflect2
sed -i 's/^func mapiterinit(.*/func mapiterinit(rtype, m unsafe.Pointer, it *hiter)/
	s,^\t// rest fields are ignored,\tpointers [6]unsafe.Pointer\n\tnumbers [4]uintptr,' $map/unsafe_link.go
sed -i 's/mapiterinit(type2/begin(type2/' $map/unsafe_map.go
printf 'func begin(rtype, m unsafe.Pointer) *hiter {\n\tit := new(hiter)\n\tmapiterinit(rtype, m, it)\n\treturn it\n}\n' >>$map/unsafe_map.go
# The tree lacks the files that its build generates first.
go build -o "$2/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
packages=$(grep -rl --include=*.go '^// +k8s:openapi-gen=' pkg staging/src/k8s.io | grep -v -e /code-generator/ -e /sample-apiserver/ |
	xargs -n 1 dirname | sort -u | sed 's,^staging/src,vendor,; s,^,k8s.io/kubernetes/,' | paste -sd,)
"$2/openapi-gen" -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -r /dev/null \
	-p k8s.io/kubernetes/pkg/generated/openapi -i "$packages"
flags="-s -w"
for package in component-base/version client-go/pkg/version; do
	v=k8s.io/kubernetes/vendor/k8s.io/$package
	flags="$flags -X $v.gitVersion=v$version -X $v.gitMajor=1 -X $v.gitMinor=20"
done
for program in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
	go build -ldflags "$flags" -o "$out/$program" "k8s.io/kubernetes/cmd/$program"
done
