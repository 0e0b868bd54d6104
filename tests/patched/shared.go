// A program of Go and C, whose connections both use: Go by system calls of its own, C by libc.
// Prints what must be equal with and without patches, then waits for the end of its standard input.
package main

/*
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
extern int turn(int);

static int wait_for(int fd, short events)
{
	struct pollfd one = {fd, events, 0};
	int ready;
	while ((ready = poll(&one, 1, 10000)) < 0 && errno == EINTR)
		;
	return ready == 1;
}

// All of it, or -1.
static long c_write(int fd, const char *bytes, long length)
{
	for (long sent = 0; sent < length;) {
		ssize_t part = write(fd, bytes + sent, length - sent);
		if (part > 0)
			sent += part;
		else if (!wait_for(fd, POLLOUT))
			return -1;
	}
	return length;
}

static long c_read(int fd, char *bytes, long length)
{
	for (long got = 0; got < length;) {
		ssize_t part = read(fd, bytes + got, length - got);
		if (part > 0)
			got += part;
		else if (part == 0 || !wait_for(fd, POLLIN))
			return -1;
	}
	return length;
}

static void *run(void *number)
{
	return (void *)(intptr_t)turn((int)(intptr_t)number);
}

// Go, called in a thread of C's.
static int in_a_thread(int number)
{
	pthread_t thread;
	void *result;
	if (pthread_create(&thread, 0, run, (void *)(intptr_t)number) || pthread_join(thread, &result))
		return -1;
	return (int)(intptr_t)result;
}

static int status_of(pid_t child)
{
	int status;
	while (waitpid(child, &status, 0) != child)
		;
	return WEXITSTATUS(status);
}

// A child of each kind. The first one has a word with the connection that it has inherited.
static int have_children(int fd)
{
	char *arguments[] = {"true", 0}, byte;
	pid_t child = fork();
	if (child == 0)
		_exit(c_write(fd, "child", 5) == 5 && read(-1, &byte, 1) == -1 ? 7 : 1);
	if (status_of(child) != 7)
		return -1;
	child = vfork();
	if (child == 0)
		_exit(8);
	if (status_of(child) != 8)
		return -1;
	if (posix_spawn(&child, "/bin/true", 0, 0, arguments, environ))
		return -1;
	return status_of(child);
}
*/
import "C"

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

const length = 1500 * time.Millisecond

var connections [16]*net.TCPConn // open until the end
var turns [16]int

func descriptor(connection *net.TCPConn) (number C.int) {
	raw, err := connection.SyscallConn()
	if err != nil {
		panic(err)
	}
	raw.Control(func(descriptor uintptr) { number = C.int(descriptor) })
	return
}

// A round trip; each half is made by Go or by C.
//
//export turn
func turn(number C.int) C.int {
	connection, n := connections[number], turns[number]
	turns[number]++
	sent := []byte(fmt.Sprintf("%d %d %s", number, n, bytes.Repeat([]byte("x"), n%3000)))
	received := make([]byte, len(sent))
	if n&1 == 0 {
		connection.Write(sent)
	} else {
		C.c_write(descriptor(connection), (*C.char)(unsafe.Pointer(&sent[0])), C.long(len(sent)))
	}
	if n&2 == 0 {
		io.ReadFull(connection, received)
	} else {
		C.c_read(descriptor(connection), (*C.char)(unsafe.Pointer(&received[0])), C.long(len(sent)))
	}
	if !bytes.Equal(sent, received) {
		return 1
	}
	return 0
}

func main() {
	stop := closedAfter(length)
	listener, profile := begin(stop)
	var wrong, trips int64
	var group sync.WaitGroup
	for n := range connections {
		connection, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			panic(err)
		}
		connections[n] = connection.(*net.TCPConn)
		group.Add(1)
		go func(n int) {
			defer group.Done()
			for i := 0; !isOver(stop); i++ {
				result := C.int(0)
				if i%50 == 49 {
					result = C.in_a_thread(C.int(n))
				} else {
					result = turn(C.int(n))
				}
				if result != 0 {
					atomic.AddInt64(&wrong, 1)
				}
				atomic.AddInt64(&trips, 1)
			}
		}(n)
	}
	for n := 0; n < 10; n++ {
		out, err := exec.Command("/bin/echo", "child").Output()
		if err != nil || string(out) != "child\n" {
			atomic.AddInt64(&wrong, 1)
		}
	}
	group.Wait()
	for _, connection := range connections {
		word := make([]byte, 5)
		if C.have_children(descriptor(connection)) != 0 {
			wrong++
		}
		if _, err := io.ReadFull(connection, word); err != nil || string(word) != "child" {
			wrong++
		}
	}
	pprof.StopCPUProfile()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	fmt.Println(wrong, "wrong; some trips:", trips > 100, "collections:", memory.NumGC > 2,
		"profile:", profile.Len() > 100)
	io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(&connections)
}
