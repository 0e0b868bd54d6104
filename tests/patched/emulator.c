/* A program that waits for a byte while signals come, whose handlers send it. With EMULATOR it
 * makes its calls as an emulator does for the program that it runs (qemu-user): a handler of its
 * own sets a call back that has not been made, and the program's handler runs between calls. Prints
 * what must be equal with and without the library, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "both.h"

#define SIGNALS 2000

static volatile int handled, pending;

static void handle(int signal)
{
    (void)signal;
    handled++;
    if (write(ends[0], "s", 1) != 1)
        abort();
}

#ifdef EMULATOR
long guarded_call(volatile int *pending, long number, long a, void *b, long c);
extern char guarded_start[], guarded_end[];
__asm__("guarded_call:\n"
        "    push %rbp\n"
        "    mov %rsi, %rax\n"
        "    mov %rdi, %rbp\n"
        "    mov %rdx, %rdi\n"
        "    mov %rcx, %rsi\n"
        "    mov %r8, %rdx\n"
        "guarded_start:\n"
        "    cmpl $0, (%rbp)\n"
        "    jnz 1f\n"
        "    syscall\n"
        "guarded_end:\n"
        "    pop %rbp\n"
        "    ret\n"
        "1:  mov $-512, %rax\n"
        "    pop %rbp\n"
        "    ret\n");

static void set_back(int signal, siginfo_t *info, void *context)
{
    greg_t *at = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    (void)signal;
    (void)info;
    pending = 1;
    if (*at > (greg_t)guarded_start && *at < (greg_t)guarded_end)
        *at = (greg_t)guarded_start;
}

static void receive(void)
{
    char byte;
    long answer;
    while ((answer = guarded_call(&pending, SYS_read, ends[1], &byte, 1)) != 1) {
        if (answer != -EINTR && answer != -512)
            abort();
        if (pending) {
            pending = 0;
            handle(SIGUSR1);
        }
    }
}
#else
static void receive(void)
{
    char byte;
    if (read(ends[1], &byte, 1) != 1)
        abort();
}
#endif

static void *interrupt(void *thread)
{
    for (int n = 0; n < SIGNALS; n++) {
        /* Whoever waits for a handler that does not run would wait for ever. */
        for (int looks = 0; handled < n; looks++) {
            usleep(100);
            if (looks == 100000)
                _exit(1);
        }
        usleep(n % 7 * 100);
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
    }
    return 0;
}

int main(void)
{
    struct sigaction action = {.sa_flags = SA_RESTART};
    pthread_t thread = pthread_self(), other;
    char byte;
#ifdef EMULATOR
    action.sa_flags |= SA_SIGINFO;
    action.sa_sigaction = set_back;
#else
    action.sa_handler = handle;
#endif
    sigaction(SIGUSR1, &action, 0);
    connect_both();
    warm_up();
    if (pthread_create(&other, 0, interrupt, &thread))
        abort();
    for (int n = 0; n < SIGNALS; n++)
        receive();
    pthread_join(other, 0);
    printf("%d signals were handled\n", handled);
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
