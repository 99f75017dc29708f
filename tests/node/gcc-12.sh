#!/bin/sh
# A compiler cache: a play installs the same version again and again, and an emulated compiler takes a minute each time. The first compilation is
# real. The key is made of the arguments, the source and the headers beside it, whatever their folder; the kernel's headers do not change in a
# play. Other calls than kbuild's compilations go to the compiler unchanged.
real=/usr/bin/x86_64-linux-gnu-gcc-12
memory=/tmp/compiled
compiles='' source='' object='' depends='' last=''
for word; do
	case $word in
	-c) compiles=yes ;;
	*.c | *.S) source=$word ;;
	-Wp,-MMD,*) depends=${word#-Wp,-MMD,} ;;
	esac
	[ "$last" = -o ] && object=$word
	last=$word
done
if [ -z "$compiles" ] || ! [ -f "$source" ] || [ -z "$object" ] || [ -z "$depends" ]; then
	exec $real "$@"
fi
folder=$(dirname "$source")
made=$memory/$({
	printf '%s\n' "$@" | sed "s|$folder|@folder@|g"
	cat "$source" "$folder"/*.h
} | md5sum | cut -c1-32)
if ! [ -f "$made.o" ]; then
	$real "$@" || exit
	mkdir -p $memory
	sed "s|$folder|@folder@|g" "$depends" >"$made.d"
	# Renamed when complete: a play kills compilers.
	cp "$object" "$made.$$" && mv "$made.$$" "$made.o"
	exit
fi
cp "$made.o" "$object" && sed "s|@folder@|$folder|g" "$made.d" >"$depends"
