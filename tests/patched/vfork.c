/* Children of vfork that give a connection to another program under another number: the words of
 * that program come where they belong. Prints what must be equal with and without patches, then
 * waits for the end of its standard input. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *arguments[] = {"echo", "word", 0};

static void connect_both(int ends[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &length) ||
        connect(ends[0], (struct sockaddr *)&address, length))
        abort();
    ends[1] = accept4(listener, 0, 0, SOCK_CLOEXEC);
    close(listener);
}

static void expect(int fd, const char *words)
{
    char received[64];
    size_t length = strlen(words);
    for (size_t got = 0; got < length;) {
        ssize_t part = read(fd, received + got, length - got);
        if (part <= 0)
            abort();
        got += part;
    }
    if (memcmp(received, words, length)) {
        printf("%.*s instead of %s\n", (int)length, received, words);
        exit(1);
    }
}

static void talk(int ends[2], int count)
{
    for (int n = 0; n < count; n++) {
        if (write(ends[0], "there", 5) != 5)
            abort();
        expect(ends[1], "there");
        if (write(ends[1], "and back", 8) != 8)
            abort();
        expect(ends[0], "and back");
    }
}

static void wait_for(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        abort();
}

/* Pages of address space. */
static long size(void)
{
    char text[64] = {0};
    int fd = open("/proc/self/statm", O_RDONLY);
    if (read(fd, text, sizeof text - 1) <= 0)
        abort();
    close(fd);
    return atol(text);
}

int main(void)
{
    int ends[2];
    char byte;
    for (int round = 0; round < 3; round++) {
        connect_both(ends);
        for (int n = 0; n < 20; n++) {
            talk(ends, 200);
            usleep(1000);
        }
        if (round == 0) {
            pid_t child = vfork();
            if (child == 0) {
                dup2(ends[0], 1);
                execve("/bin/echo", arguments, environ);
                _exit(1);
            }
            wait_for(child);
        } else if (round == 1) {
            pid_t child = vfork();
            if (child == 0) {
                int other = fcntl(ends[0], F_DUPFD, 100);
                if (dup3(other, 1, 0) != 1 || write(other, "by ", 3) != 3)
                    _exit(1);
                execve("/bin/echo", arguments, environ);
                _exit(1);
            }
            wait_for(child);
            expect(ends[1], "by ");
        } else {
            posix_spawn_file_actions_t actions;
            pid_t child;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, ends[0], 1);
            if (posix_spawn(&child, "/bin/echo", &actions, 0, arguments, environ))
                abort();
            wait_for(child);
        }
        expect(ends[1], "word\n");
        talk(ends, 100);
    }
    long before = size();
    for (int n = 0; n < 100; n++) {
        pid_t child = vfork();
        if (child == 0) {
            execve("/bin/true", arguments, environ);
            _exit(1);
        }
        wait_for(child);
    }
    printf("words in their places; %s\n", size() - before < 500 ? "no more memory" : "a leak");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
