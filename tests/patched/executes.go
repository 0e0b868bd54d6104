// Executes the program in its first argument by os/exec, from several goroutines; then in its place.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

func main() {
	var all sync.WaitGroup
	outputs := make([]string, 8)
	for n := range outputs {
		all.Add(1)
		go func() {
			defer all.Done()
			output, err := exec.Command(os.Args[1], "one").CombinedOutput()
			outputs[n] = fmt.Sprint(string(output), err)
		}()
	}
	all.Wait()
	for _, output := range outputs {
		fmt.Println(output)
	}
	busy, err := os.OpenFile(os.Args[3], os.O_WRONLY, 0)
	_, err = exec.Command(os.Args[3]).Output()
	fmt.Println(err)
	busy.Close()
	fmt.Println(syscall.Exec(os.Args[4], os.Args[4:5], os.Environ()))
	fmt.Println(syscall.Exec(os.Args[1], os.Args[1:2], os.Environ()))
}
