// Goroutines, collections, preemption, profiling and children of a program that makes its system
// calls itself. Prints what must be equal with and without patches, then waits for the end of its
// standard input.
package main

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
	"syscall"
	"time"
)

const length = 1500 * time.Millisecond

// Calls f on a stack that has to grow.
func deep(frames int, f func()) byte {
	var room [256]byte
	if frames == 0 {
		f()
		return 0
	}
	room[frames] = 1
	return room[frames] + deep(frames-1, f)
}

// Counts the answers to bad pointers that are not the kernel's, on a connection that answers what it
// is sent.
func badPointers(connection *net.TCPConn) (wrong int64) {
	refuses := func(call, pointer, length uintptr) {
		raw, err := connection.SyscallConn()
		if err != nil {
			panic(err)
		}
		raw.Control(func(descriptor uintptr) {
			if _, _, err := syscall.Syscall(call, descriptor, pointer, length); err != syscall.EFAULT {
				wrong++
			}
		})
	}
	connection.Write([]byte("still there"))
	received := make([]byte, 11)
	io.ReadFull(connection, received[:1]) // and the rest has come, too
	for n := 0; n < 100; n++ {
		for _, length := range []uintptr{1, 10, 100, 1000, 10000} {
			refuses(syscall.SYS_WRITE, 8, length)
			refuses(syscall.SYS_READ, 8, length)
			refuses(syscall.SYS_WRITEV, 8, 1)
			refuses(syscall.SYS_READV, 8, 1)
		}
		// A fault of the program's own is its panic.
		func() {
			defer func() {
				if recover() == nil {
					wrong++
				}
			}()
			var nowhere *int
			*nowhere = n
		}()
	}
	io.ReadFull(connection, received[1:])
	if string(received) != "still there" {
		wrong++
	}
	return wrong
}

func main() {
	stop := closedAfter(length)
	listener, profile := begin(stop)
	var wrong, trips int64
	var connections [32]net.Conn // open until the end
	var group sync.WaitGroup
	for n := range connections {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			connection, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				atomic.AddInt64(&wrong, 1)
				return
			}
			connections[n] = connection
			for i := 0; !isOver(stop); i++ {
				deep(i%20, func() {
					sent := []byte(fmt.Sprintf("%d %d %s", n, i, bytes.Repeat([]byte("x"), i%300)))
					received := make([]byte, len(sent))
					connection.Write(sent)
					io.ReadFull(connection, received)
					if !bytes.Equal(sent, received) {
						atomic.AddInt64(&wrong, 1)
					}
					atomic.AddInt64(&trips, 1)
				})
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
	atomic.AddInt64(&wrong, badPointers(connections[0].(*net.TCPConn)))
	pprof.StopCPUProfile()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	_, err := syscall.Write(1, nil)
	fmt.Println(wrong, "wrong; some trips:", trips > 100, "collections:", memory.NumGC > 2,
		"profile:", profile.Len() > 100, err)
	io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(&connections)
}
