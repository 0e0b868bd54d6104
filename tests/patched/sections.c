/* Restartable sequences (rseq(2)) of threads that make calls and get signals. Prints what must be
 * equal with and without the library, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "both.h"

#define THREADS 4
#define ROUNDS 50000L
#define CPUS 1024
#define SIGNATURE 0x53053053
#define UNREGISTER 1

/* struct rseq of linux/rseq.h. */
struct area {
    unsigned cpu_start, cpu;
    unsigned long section;
    unsigned flags, node, space[2];
} __attribute__((aligned(32)));

/* glibc registers an area for each thread; with other libraries the thread does. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
static __thread volatile struct area own;
static long counters[CPUS][8];
static volatile long restarts, ended;

static volatile struct area *register_area(void)
{
    if (&__rseq_size && __rseq_size)
        return (volatile void *)((char *)__builtin_thread_pointer() + __rseq_offset);
    if (syscall(SYS_rseq, &own, sizeof own, 0, SIGNATURE))
        abort();
    return &own;
}

static void leave_area(volatile struct area *area)
{
    if (area == &own && syscall(SYS_rseq, &own, sizeof own, UNREGISTER, SIGNATURE))
        abort();
}

/* Adds one to the counter of the processor, which threads on another have no part in. False when it
 * was interrupted before it could. */
static int add(volatile struct area *area)
{
    unsigned cpu = area->cpu_start;
    long *counter = counters[cpu];
    if (cpu >= CPUS)
        abort();
    __asm__ goto volatile(".pushsection __rseq_cs, \"aw\"\n"
                          ".balign 32\n"
                          "3: .long 0, 0\n"
                          "   .quad 1f, 2f - 1f, 4f\n"
                          ".popsection\n"
                          "   lea 3b(%%rip), %%rax\n"
                          "   mov %%rax, 8(%[area])\n"
                          "1: cmp %[cpu], 4(%[area])\n"
                          "   jne 4f\n"
                          "   mov (%[counter]), %%rdx\n"
                          "   mov $1000, %%eax\n"
                          "5: dec %%eax\n"
                          "   jnz 5b\n"
                          "   inc %%rdx\n"
                          "   mov %%rdx, (%[counter])\n"
                          "2:\n"
                          ".pushsection __rseq_failure, \"ax\"\n"
                          ".byte 0x0f, 0xb9, 0x3d\n"
                          ".long 0x53053053\n"
                          "4: jmp %l[interrupted]\n"
                          ".popsection\n"
                          :
                          : [area] "r"(area), [cpu] "r"(cpu), [counter] "r"(counter)
                          : "rax", "rdx", "memory", "cc"
                          : interrupted);
    return 1;
interrupted:
    return 0;
}

static void call(int signal)
{
    char byte;
    (void)signal;
    (void)!read(-1, &byte, 1);
}

static void *count(void *number)
{
    volatile struct area *area = register_area();
    for (long n = 0; n < ROUNDS; n++) {
        while (!add(area))
            __atomic_add_fetch(&restarts, 1, __ATOMIC_RELAXED);
        if (n % 20 == 0)
            call(0);
        if (!number && n % 20 == 0) {
            char byte;
            if (write(ends[0], "x", 1) != 1 || read(ends[1], &byte, 1) != 1)
                abort();
        }
    }
    leave_area(area);
    __atomic_add_fetch(&ended, 1, __ATOMIC_RELEASE);
    return 0;
}

/* The processor that the area, the vDSO and the kernel name, after calls on each of them. */
static void check_processors(void)
{
    cpu_set_t allowed, one;
    volatile struct area *area = register_area();
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        abort();
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        unsigned kernels;
        char byte;
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one))
            abort();
        for (int n = 0; n < 100; n++) {
            if (write(ends[0], "x", 1) != 1 || read(ends[1], &byte, 1) != 1)
                abort();
            syscall(SYS_getcpu, &kernels, 0, 0);
            if ((int)area->cpu != cpu || sched_getcpu() != cpu || (int)kernels != cpu)
                abort();
        }
    }
    sched_setaffinity(0, sizeof allowed, &allowed);
    leave_area(area);
}

int main(void)
{
    struct sigaction action = {.sa_handler = call, .sa_flags = SA_RESTART};
    pthread_t threads[THREADS];
    long sum = 0;
    char byte;
    sigaction(SIGUSR1, &action, 0);
    connect_both();
    warm_up();
    check_processors();
    for (long n = 0; n < THREADS; n++) {
        if (pthread_create(threads + n, 0, count, (void *)n))
            abort();
    }
    while (__atomic_load_n(&ended, __ATOMIC_ACQUIRE) < THREADS) {
        for (int n = 0; n < THREADS; n++)
            pthread_kill(threads[n], SIGUSR1);
        usleep(200);
    }
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], 0);
    for (int n = 0; n < CPUS; n++)
        sum += counters[n][0];
    printf("%ld added, %s restarts\n", sum, restarts > 10 ? "many" : "few");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
