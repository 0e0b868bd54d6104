/* Calls by an instruction that the program makes when it runs, which nobody has patched. Prints what
 * became of them: three lines that are equal on the kernel and accelerated, and one about bytes that
 * are written past a library which has begun to use a ring. Then waits for the end of its standard
 * input. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "both.h"

static long (*made)(long number, long first, const void *second, long third);

static void make(void)
{
    /* mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx; syscall; ret */
    static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89,
                                         0xd6, 0x48, 0x89, 0xca, 0x0f, 0x05, 0xc3};
    void *at = mmap(0, sizeof code, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        abort();
    memcpy(at, code, sizeof code);
    if (mprotect(at, sizeof code, PROT_READ | PROT_EXEC))
        abort();
    made = at;
}

/* As exchange() of both.h, with the writes by made calls, or the reads, or both. */
static int are_whole(int rounds, int by_made_writes, int by_made_reads)
{
    char byte;
    for (int n = 0; n < rounds; n++) {
        for (int end = 0; end < 2; end++) {
            char sent = n + end;
            if ((by_made_writes ? made(SYS_write, ends[end], &sent, 1)
                                : write(ends[end], &sent, 1)) != 1)
                return 0;
            if ((by_made_reads ? made(SYS_read, ends[!end], &byte, 1)
                               : read(ends[!end], &byte, 1)) != 1)
                return 0;
            if (byte != sent)
                return 0;
        }
        if (n % (rounds / 20) == 0)
            usleep(1000);
    }
    return 1;
}

int main(void)
{
    char words[16] = {0};
    make();
    connect_both();
    printf("all made: %s; ", are_whole(2000, 1, 1) ? "whole" : "bytes are missing");
    connect_both();
    printf("made writes: %s; ", are_whole(2000, 1, 0) ? "whole" : "bytes are missing");
    connect_both();
    printf("made reads: %s; ", are_whole(2000, 0, 1) ? "whole" : "bytes are missing");
    connect_both();
    warm_up();
    struct pollfd input = {ends[1], POLLIN, 0};
    if (made(SYS_write, ends[0], "late", 4) != 4 || poll(&input, 1, -1) != 1)
        abort();
    long got = read(ends[1], words, sizeof words);
    printf("begun late: %s\n", got < 0 ? strerror(errno) : words);
    fflush(stdout);
    while (read(0, words, 1) > 0)
        ;
    return 0;
}
