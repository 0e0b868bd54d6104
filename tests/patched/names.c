/* A program that names the process which may trace it (PR_SET_PTRACER), and executes the program of
 * its argument. Prints what must be equal with and without the library. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Waits for a word, and tells whether it may trace its parent: no ancestor, so Yama asks for its
 * name. It lets go of its parent when it ends. */
static void look(int word, int answer)
{
    char byte;
    if (read(word, &byte, 1) == 1) {
        byte = ptrace(PTRACE_SEIZE, getppid(), 0, 0) == 0 ? 'y' : 'n';
        (void)!write(answer, &byte, 1);
    }
    _exit(0);
}

int main(int count, char **arguments)
{
    int word[2], answer[2], status;
    char byte = 0, *says[] = {arguments[1], 0};
    pid_t child, looks;
    if (count < 2 || pipe(word) || pipe(answer))
        abort();
    looks = fork();
    if (looks == 0)
        look(word[0], answer[1]);
    prctl(PR_SET_PTRACER, looks, 0, 0, 0);
    if (posix_spawn(&child, arguments[1], 0, 0, says, environ) ||
        waitpid(child, &status, 0) != child)
        abort();
    if (write(word[1], "?", 1) != 1 || read(answer[0], &byte, 1) != 1)
        abort();
    waitpid(looks, 0, 0);
    printf("status %d, may be traced: %c\n", status, byte);
    return 0;
}
