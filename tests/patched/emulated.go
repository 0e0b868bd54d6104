// Goroutines, threads and collections of a program for another processor. It imports one package:
// each package is compiled for that processor first. Prints what must be equal with and without
// Toehold, then waits for the end of its standard input.
package main

import "syscall"

const (
	clients = 8
	rounds  = 200
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Calls f again when a signal of the runtime's has interrupted it.
func again(f func() (int, error)) (int, error) {
	for {
		result, err := f()
		if err != syscall.EINTR {
			return result, err
		}
	}
}

// Sends back what it receives, on each connection.
func serve(listener int) {
	for n := 0; n < clients; n++ {
		connection, err := again(func() (int, error) {
			connection, _, err := syscall.Accept(listener)
			return connection, err
		})
		check(err)
		go func() {
			for {
				// Garbage at once: the runtime collects it, and stops threads by signals for that.
				bytes := make([]byte, 4096)
				received, err := again(func() (int, error) { return syscall.Read(connection, bytes) })
				check(err)
				if received == 0 {
					check(syscall.Close(connection))
					return
				}
				_, err = again(func() (int, error) { return syscall.Write(connection, bytes[:received]) })
				check(err)
			}
		}()
	}
}

// Counts the answers that are not what was sent.
func talk(server syscall.Sockaddr, client int) (wrong int) {
	connection, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	check(err)
	check(syscall.Connect(connection, server))
	for round := 0; round < rounds; round++ {
		sent := []byte{byte(client), byte(round)}
		_, err := again(func() (int, error) { return syscall.Write(connection, sent) })
		check(err)
		for _, expected := range sent {
			received := make([]byte, 1)
			count, err := again(func() (int, error) { return syscall.Read(connection, received) })
			check(err)
			if count != 1 || received[0] != expected {
				wrong++
			}
		}
	}
	check(syscall.Close(connection))
	return wrong
}

func main() {
	listener, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	check(err)
	check(syscall.Bind(listener, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	check(syscall.Listen(listener, clients))
	server, err := syscall.Getsockname(listener)
	check(err)
	go serve(listener)
	results := make(chan int)
	for client := 0; client < clients; client++ {
		go func() { results <- talk(server, client) }()
	}
	wrong := 0
	for client := 0; client < clients; client++ {
		wrong += <-results
	}
	said := "all answers are right\n"
	if wrong > 0 {
		said = "some answers are wrong\n"
	}
	_, err = syscall.Write(1, []byte(said))
	check(err)
	_, err = again(func() (int, error) { return syscall.Read(0, make([]byte, 1)) })
	check(err)
}
