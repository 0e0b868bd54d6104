/* Threads, signals and children of a program that makes its system calls itself. Prints what must
 * be equal with and without patches, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static volatile long ticks;

/* Calls from a handler that interrupts other calls. */
static void tick(int signal)
{
    char byte;
    (void)signal;
    ticks++;
    (void)!read(-1, &byte, 1);
}

static void *talk(void *result)
{
    int ends[2];
    char sent[64], received[64];
    long count = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        abort();
    for (int n = 0; n < 20000; n++) {
        double kept = n * 1.5; /* in an SSE register over the calls */
        memset(sent, n, sizeof sent);
        if (write(ends[0], sent, 64) != 64 || read(ends[1], received, 64) != 64)
            abort();
        if (memcmp(sent, received, 64) || kept != n * 1.5)
            abort();
        count++;
    }
    close(ends[0]);
    close(ends[1]);
    *(long *)result = count;
    return 0;
}

static int status_of(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) != child)
        ;
    return WEXITSTATUS(status);
}

static void have_children(void)
{
    char *arguments[] = {"true", 0}, byte;
    pid_t child = fork();
    if (child == 0) {
        (void)!read(-1, &byte, 1);
        _exit(7);
    }
    if (status_of(child) != 7)
        abort();
    child = vfork();
    if (child == 0)
        _exit(8);
    if (status_of(child) != 8)
        abort();
    if (posix_spawn(&child, "/bin/true", 0, 0, arguments, environ) || status_of(child) != 0)
        abort();
}

int main(void)
{
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    struct itimerval seldom = {{0, 50000}, {0, 50000}};
    pthread_t threads[8];
    long counts[8], sum = 0;
    char byte;
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &often, 0);
    for (int n = 0; n < 8; n++)
        pthread_create(threads + n, 0, talk, counts + n);
    for (int n = 0; n < 8; n++) {
        pthread_join(threads[n], 0);
        sum += counts[n];
    }
    /* A signal that comes before each fork has ended would keep it from ever ending. */
    setitimer(ITIMER_REAL, &seldom, 0);
    for (int n = 0; n < 10; n++)
        have_children();
    setitimer(ITIMER_REAL, &never, 0);
    /* A bad pointer: the answer is the kernel's. */
    if (write(1, (void *)8, 5) != -1)
        abort();
    printf("%ld round trips, %s\n", sum, ticks > 10 ? "many signals" : "few signals");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
