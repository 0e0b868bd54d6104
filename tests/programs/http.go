// A server and a client of Go's net/http: http server PORT | http client PORT.
// The client sums what it receives, over kept connections and new ones, and sends bodies.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

var sizes = []int{0, 1, 1000, 65536, 1000000, 12345678}

func body(size int) []byte {
	line := fmt.Sprintf("%d\n", size)
	return []byte(strings.Repeat(line, size/len(line)+1)[:size])
}

// As many bytes as the path says, or what was sent.
func answer(response http.ResponseWriter, request *http.Request) {
	if request.Method == http.MethodPost {
		io.Copy(response, request.Body)
		return
	}
	size, _ := strconv.Atoi(request.URL.Path[1:])
	response.Write(body(size))
}

// Asks once and adds what came to `sum`.
func ask(client *http.Client, method, url string, sent []byte, sum io.Writer) {
	request, err := http.NewRequest(method, url, bytes.NewReader(sent))
	if err != nil {
		log.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	count, err := io.Copy(sum, response.Body)
	fmt.Fprint(sum, response.StatusCode, count, err)
}

// Several goroutines ask `count` times each; the same bytes have to come to all of them.
func load(client *http.Client, method, url string, sent []byte, count int) {
	const askers = 8
	var sums [askers]string
	var group sync.WaitGroup
	for asker := 0; asker < askers; asker++ {
		group.Add(1)
		go func(asker int) {
			defer group.Done()
			sum := sha256.New()
			for at := 0; at < count; at++ {
				ask(client, method, url, sent, sum)
			}
			sums[asker] = fmt.Sprintf("%x", sum.Sum(nil))
		}(asker)
	}
	group.Wait()
	for _, sum := range sums {
		if sum != sums[0] {
			log.Fatal("answers differ")
		}
	}
	fmt.Println(method, url[strings.LastIndex(url, "/"):], count, sums[0])
}

func main() {
	if os.Args[1] == "server" {
		log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[2], http.HandlerFunc(answer)))
	}
	kept := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	server := "http://127.0.0.1:" + os.Args[2] + "/"
	for _, size := range sizes {
		count := min(2000, 1+20000000/(size+1))
		load(kept, http.MethodGet, server+strconv.Itoa(size), nil, count)
		load(kept, http.MethodPost, server, body(size), min(count, 200))
		load(fresh, http.MethodGet, server+strconv.Itoa(size), nil, min(count, 50))
	}
}
