// Many system calls of goroutines that the runtime preempts all the time: the number in CALLS.
// Prints what must be equal with and without patches, then waits for the end of its standard input.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

const goroutines = 16

// How many calls a goroutine makes before it looks whether others have made the rest.
const turn = 1000

func descriptor(connection net.Conn) (number int) {
	raw, err := connection.(*net.TCPConn).SyscallConn()
	if err != nil {
		panic(err)
	}
	raw.Control(func(descriptor uintptr) { number = int(descriptor) })
	return
}

// Calls f until the descriptor is ready.
func insist(f func() (int, error)) int {
	for {
		n, err := f()
		if err != syscall.EAGAIN && err != syscall.EINTR {
			return n
		}
		runtime.Gosched()
	}
}

// Sends numbers that come back, and makes calls that fail. Returns how many calls had other answers
// than the kernel's.
func work(listener net.Listener, made *int64, wanted int64) (wrong int64) {
	connection, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		panic(err)
	}
	other, fd := make([]byte, 8), descriptor(connection)
	for count := uint64(1); atomic.LoadInt64(made) < wanted; count++ {
		sent, received := make([]byte, 8), other[:]
		binary.LittleEndian.PutUint64(sent, count)
		if insist(func() (int, error) { return syscall.Write(fd, sent) }) != 8 {
			wrong++
		}
		for n := 0; n < turn-2; n += 2 {
			if _, err := syscall.Read(-1, received); err != syscall.EBADF {
				wrong++
			}
			if got, err := syscall.Write(fd, nil); got != 0 || err != nil {
				wrong++
			}
		}
		if _, err := io.ReadFull(connection, received); err != nil {
			wrong++
		}
		if binary.LittleEndian.Uint64(received) != count {
			wrong++
		}
		atomic.AddInt64(made, turn)
	}
	runtime.KeepAlive(connection)
	return wrong
}

func main() {
	wanted, err := strconv.ParseInt(os.Getenv("CALLS"), 10, 64)
	if err != nil {
		panic(err)
	}
	runtime.GOMAXPROCS(4)
	stop := make(chan struct{})
	listener, profile := begin(stop)
	var wrong, made int64
	var group sync.WaitGroup
	for n := 0; n < goroutines; n++ {
		group.Add(1)
		go func() {
			defer group.Done()
			atomic.AddInt64(&wrong, work(listener, &made, wanted))
		}()
	}
	group.Wait()
	close(stop)
	pprof.StopCPUProfile()
	fmt.Println(wrong, "wrong; all made:", made >= wanted, "profile:", profile.Len() > 100)
	io.Copy(io.Discard, os.Stdin)
}
