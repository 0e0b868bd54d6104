/* Clocks that the program reads through the vDSO. Prints what must be equal with and without the
 * library, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include "both.h"
#include "filter.h"

static long long nanoseconds(struct timespec time)
{
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Each clock is where the kernel says that it is. */
static void compare(void)
{
    static const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME};
    struct timespec before, through, after;
    for (int n = 0; n < 3000; n++) {
        clockid_t clock = clocks[n % 3];
        if (syscall(SYS_clock_gettime, clock, &before) || clock_gettime(clock, &through) ||
            syscall(SYS_clock_gettime, clock, &after))
            abort();
        /* The real clock may be set. */
        if (clock != CLOCK_REALTIME && (nanoseconds(before) > nanoseconds(through) ||
                                        nanoseconds(through) > nanoseconds(after)))
            abort();
    }
}

/* A system call that nobody sees but the kernel: its instruction is made when the program runs. */
static long call_unseen(long number, long a, long b, const void *c)
{
    static const char code[] = "\x48\x89\xf8\x48\x89\xf7\x48\x89\xd6\x48\x89\xca" /* mov */
                               "\x0f\x05\xc3";                                     /* syscall; ret */
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || !memcpy(page, code, sizeof code) ||
        mprotect(page, 4096, PROT_READ | PROT_EXEC))
        abort();
    return ((long (*)(long, long, long, const void *))page)(number, a, b, c);
}

/* Reads clocks and uses the connection while the kernel refuses to answer calls for clocks. How
 * many were refused. The library would leave a program of whose filter it knew. */
static int refused(void)
{
    struct sock_filter filter[] = {
        {LOAD_WORD, 0, 0, 0},
        {JUMP_EQUAL, 4, 0, SYS_clock_gettime},
        {JUMP_EQUAL, 3, 0, SYS_gettimeofday},
        {JUMP_EQUAL, 2, 0, SYS_time},
        {JUMP_EQUAL, 1, 0, SYS_getcpu},
        {ANSWER, 0, 0, ALLOWED},
        {ANSWER, 0, 0, REFUSED | EPERM},
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct timespec now;
    struct timeval of_day;
    int count = 0;
    char byte;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        call_unseen(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        abort();
    if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now) != -1 || errno != EPERM)
        abort();
    for (int n = 0; n < 1000; n++) {
        count += clock_gettime(CLOCK_MONOTONIC, &now) != 0;
        count += clock_gettime(CLOCK_REALTIME, &now) != 0;
        count += gettimeofday(&of_day, 0) != 0;
        count += time(0) < 0;
        count += sched_getcpu() < 0;
        if (write(ends[0], "x", 1) != 1 || read(ends[1], &byte, 1) != 1)
            abort();
    }
    return count;
}

int main(void)
{
    char byte;
    connect_both();
    warm_up();
    compare();
    printf("%d calls were made\n", refused());
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
