#!/bin/sh
# Stands before the node's compiler and remembers what that made: a play installs the same version again and again, and a compiler in an
# emulated processor takes a minute for it. The first time is real. Remembered is by the arguments, the source and the headers beside it,
# wherever their folder is; the kernel's headers stay the same in a play. Whatever is no compilation for kbuild goes straight through.
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
	# In place when it is whole: a play kills compilers.
	cp "$object" "$made.$$" && mv "$made.$$" "$made.o"
	exit
fi
cp "$made.o" "$object" && sed "s|@folder@|$folder|g" "$made.d" >"$depends"
