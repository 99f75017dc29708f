// A program in a container that calls ioctl and prints each result.
//
//   caller call HEX...     each request on a descriptor that is not open; the errno shows what refused it
//   caller call32 HEX...   the same as a 32-bit program does it (x86 only)
//   caller sweep           every number and size, with changing other bits: the count of each errno
//   caller usual           requests that every program makes, on real files
//   caller hold            waits to be killed
//
// Built static, so that it runs in any root.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

static int refused_with(unsigned long request) {
    return syscall(SYS_ioctl, -1L, request, 0L) == 0 ? 0 : errno;
}

#ifdef __x86_64__
static int refused_with_32(unsigned long request) {
    long result;
    // ioctl is number 54 of the 32-bit table.
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(54L), "b"(-1L), "c"(request), "d"(0L) : "memory", "r8", "r9", "r10", "r11");
    return (int)-result;
}
#endif

static int sweep(void) {
    unsigned long of[256] = {0};
    uint32_t other = 1;
    for (uint32_t size = 0; size < 0x4000; size++)
        for (uint32_t number = 0; number < 0x100; number++) {
            other = other * 1664525u + 1013904223u;
            // Varies type, direction, and the register's upper half, which the kernel discards.
            unsigned long request = size << 16 | number | (other & 0xc000ff00u);
            request |= (unsigned long)(other >> 3) << 32;
            of[refused_with(request) & 0xff]++;
        }
    for (int error = 0; error < 256; error++)
        if (of[error]) printf("%d: %lu\n", error, of[error]);
    return 0;
}

static int usual(void) {
    int ends[2], waiting = 0;
    if (pipe(ends) != 0 || write(ends[1], "four", 4) != 4) return 1;
    int done = ioctl(ends[0], FIONREAD, &waiting);
    printf("FIONREAD %d %d\n", done, waiting);
    struct winsize size;
    int is_terminal = ioctl(ends[0], TIOCGWINSZ, &size);
    printf("TIOCGWINSZ %d %s\n", is_terminal, strerror(errno));
    printf("FIOCLEX %d\n", ioctl(ends[0], FIOCLEX));
    long key = syscall(SYS_keyctl, 0, 0, 0, 0, 0);
    printf("keyctl %s\n", key < 0 && errno == EPERM ? "refused" : "let through");
    return 0;
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "sweep")) return sweep();
    if (!strcmp(what, "usual")) return usual();
    if (!strcmp(what, "hold")) return puts("holding"), pause();
    for (int at = 2; at < count; at++) {
        unsigned long request = strtoul(words[at], NULL, 16);
        if (!strcmp(what, "call")) printf("%s %d\n", words[at], refused_with(request));
#ifdef __x86_64__
        if (!strcmp(what, "call32")) printf("%s %d\n", words[at], refused_with_32(request));
#endif
    }
    return 0;
}
