/* Socket calls by instructions, as those of Rust that do not call libc. */
#include <stdio.h>
#include <sys/syscall.h>

#include "both.h"

static inline __attribute__((always_inline)) long past_libc(long number, long fd, char *byte)
{
    register long flags __asm__("r10") = 0, address __asm__("r8") = 0, length __asm__("r9") = 0;
    long answer;
    __asm__ volatile("mov %1, %%eax\n"
                     "syscall"
                     : "=&a"(answer)
                     : "i"(number), "D"(fd), "S"(byte), "d"(1L), "r"(flags), "r"(address), "r"(length)
                     : "rcx", "r11", "memory");
    return answer;
}

static inline int move_byte_past_libc(int from, int to)
{
    char byte = 'x';
    return past_libc(SYS_sendto, from, &byte) == 1 && past_libc(SYS_recvfrom, to, &byte) == 1;
}

#ifndef FAMILY
#define FAMILY AF_INET
#endif

/* Moves bytes each way on a connection of FAMILY with itself, prints a line, and waits for the end
 * of its standard input. */
static inline int talk(int (*move)(int from, int to))
{
    char byte;
    connect_both_of(FAMILY);
    for (int n = 0; n < 20000; n++) {
        if (!move(ends[0], ends[1]) || !move(ends[1], ends[0]))
            abort();
        if (n % 1000 == 0)
            usleep(1000);
    }
    printf("done\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
