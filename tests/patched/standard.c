/* Connections that are standard input and output, of this program's own stdio and of a program that
 * it executes. Prints what must be equal with and without patches, then waits for the end of its
 * standard input. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "both.h"

extern char **environ;

static void receive(int fd, char *words, int length)
{
    for (int got = 0; got < length;) {
        int part = read(fd, words + got, length - got);
        if (part <= 0)
            abort();
        got += part;
    }
}

/* Sends words and expects them back. */
static void talk(int fd, int count)
{
    char words[32], answer[32];
    for (int n = 0; n < count; n++) {
        int length = sprintf(words, "line %d\n", n);
        if (write(fd, words, length) != length)
            abort();
        receive(fd, answer, length);
        if (memcmp(words, answer, length))
            abort();
        if (n % 1000 == 0)
            usleep(1000);
    }
}

/* A process whose standard input and output are `fd`, and that says every line again. */
static pid_t echo_lines(int fd, int other)
{
    char line[64];
    pid_t child = fork();
    if (child)
        return child;
    close(other);
    dup2(fd, 0);
    dup2(0, 1);
    close(fd);
    while (fgets(line, sizeof line, stdin)) {
        printf("%s", line);
        fflush(stdout);
    }
    exit(0);
}

static void wait_for(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        abort();
}

/* Executes a program whose standard input and output are `input` and `output`. */
static void execute(char **arguments, int input, int output)
{
    pid_t child = vfork();
    if (child == 0) {
        dup2(input, 0);
        dup2(output, 1);
        execve(arguments[0], arguments, environ);
        _exit(1);
    }
    wait_for(child);
}

/* A process with the connection as its standard input executes programs: one with another input,
 * which changes nothing, and one that has what nobody has read. */
static pid_t execute_both(void)
{
    static char *takes[] = {"/usr/bin/head", "-c", "6", 0};
    struct pollfd input = {0, POLLIN, 0};
    int pipes[2];
    char byte;
    pid_t child = fork();
    if (child)
        return child;
    dup2(ends[0], 0);
    dup2(ends[0], 1);
    close(ends[0]);
    close(ends[1]);
    printf("ready\n");
    fflush(stdout);
    poll(&input, 1, -1);
    if (pipe(pipes) || write(pipes[1], "!", 1) != 1)
        abort();
    execute((char *[]){"/usr/bin/head", "-c", "1", 0}, pipes[0], pipes[1]);
    if (read(pipes[0], &byte, 1) != 1 || byte != '!' || read(0, &byte, 1) != 1 || byte != '-')
        abort();
    execute(takes, 0, 1);
    exit(0);
}

int main(void)
{
    char byte, words[8] = {0};
    connect_both();
    warm_up();
    pid_t child = execute_both();
    close(ends[0]);
    receive(ends[1], words, 6);
    if (write(ends[1], "-unread", 7) != 7)
        abort();
    receive(ends[1], words, 6);
    printf("%s", words);
    fflush(stdout);
    wait_for(child);
    close(ends[1]);

    connect_both();
    child = echo_lines(ends[0], ends[1]);
    close(ends[0]);
    talk(ends[1], 20000);
    printf("; all lines came again\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    close(ends[1]);
    wait_for(child);
    return 0;
}
