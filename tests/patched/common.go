package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"runtime/pprof"
	"syscall"
	"time"
)

func echo(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go io.Copy(connection, connection)
	}
}

// Begins a profile and a listener that sends back what it receives. Until stop is closed the
// process gets the signal by which the runtime preempts goroutines.
func begin(stop <-chan struct{}) (listener net.Listener, profile *bytes.Buffer) {
	profile = new(bytes.Buffer)
	if err := pprof.StartCPUProfile(profile); err != nil {
		panic(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go echo(listener)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for n := 0; n < 20; n++ {
				syscall.Kill(os.Getpid(), syscall.SIGURG)
			}
			time.Sleep(200 * time.Microsecond)
		}
	}()
	return listener, profile
}

// A channel that is closed after a time.
func closedAfter(length time.Duration) <-chan struct{} {
	stop := make(chan struct{})
	time.AfterFunc(length, func() { close(stop) })
	return stop
}

func isOver(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}
