// A library of Go, loaded into a program of C (host.c). Its system calls are its own; connections
// lead from Go to Go, from Go to C, and from C to Go.
package main

import "C"

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"syscall"
)

var stop = make(chan struct{})
var kept sync.Map // connections, open until the process ends

// Returns once the runtime has begun.
//
//export begun
func begun() C.int { return 1 }

// The port at which this library sends back what it receives. Signals and a profile begin.
//
//export serve
func serve() C.int {
	listener, _ := begin(stop)
	return C.int(listener.Addr().(*net.TCPAddr).Port)
}

// Round trips to whoever sends back what it receives; how many were wrong.
//
//export ask
func ask(port, connections, trips C.int) C.int {
	var wrong int32
	var group sync.WaitGroup
	for n := 0; n < int(connections); n++ {
		connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			panic(err)
		}
		kept.Store(connection, nil)
		group.Add(1)
		go func(n int) {
			defer group.Done()
			for i := 0; i < int(trips); i++ {
				sent := []byte(fmt.Sprintf("%d %d %s", n, i, bytes.Repeat([]byte("x"), i%3000)))
				received := make([]byte, len(sent))
				connection.Write(sent)
				io.ReadFull(connection, received)
				if !bytes.Equal(sent, received) {
					atomic.AddInt32(&wrong, 1)
				}
			}
			atomic.AddInt32(&wrong, badPointer(connection.(*net.TCPConn)))
		}(n)
	}
	group.Wait()
	out, err := exec.Command("/bin/echo", "child").Output()
	if err != nil || string(out) != "child\n" {
		wrong++
	}
	return C.int(wrong)
}

// Not 0 unless the kernel's answer comes to a bad pointer.
func badPointer(connection *net.TCPConn) (wrong int32) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return 1
	}
	raw.Control(func(descriptor uintptr) {
		_, _, answer := syscall.RawSyscall(syscall.SYS_WRITE, descriptor, 8, 10)
		if answer != syscall.EFAULT {
			wrong = 1
		}
	})
	return wrong
}

// Signals and the profile end.
//
//export finish
func finish() {
	close(stop)
	pprof.StopCPUProfile()
}

func main() {}
