// Puts keys into etcd from several clients, each waiting for its answers, and counts what is there:
// etcd-puts ADDRESS CLIENTS PUTS
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func put(address string, client, puts int) {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	for at := 0; at < puts; at++ {
		key := fmt.Sprintf("puts/%d/%d", client, at)
		if _, err := etcd.Put(context.Background(), key, strconv.Itoa(at)); err != nil {
			log.Fatal(err)
		}
	}
}

func main() {
	address := os.Args[1]
	clients, _ := strconv.Atoi(os.Args[2])
	puts, _ := strconv.Atoi(os.Args[3])
	var group sync.WaitGroup
	for client := 0; client < clients; client++ {
		group.Add(1)
		go func(client int) {
			defer group.Done()
			put(address, client, puts)
		}(client)
	}
	group.Wait()
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
	if err != nil {
		log.Fatal(err)
	}
	found, err := etcd.Get(context.Background(), "puts/", clientv3.WithPrefix())
	if err != nil {
		log.Fatal(err)
	}
	sum := 0
	for _, pair := range found.Kvs {
		value, _ := strconv.Atoi(string(pair.Value))
		sum += value
	}
	fmt.Println(found.Count, sum)
}
