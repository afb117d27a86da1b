// Command ryuk stands in for the reaper of testcontainers. A client sends lines of filters, such as label=a=b&label=c=d,
// and ryuk answers each with ACK. When no client is connected for RYUK_RECONNECTION_TIMEOUT, ryuk removes the objects
// with these labels by /var/run/docker.sock, and exits.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// firstClient limits the wait for the first client.
const firstClient = time.Minute

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	wait, err := time.ParseDuration(os.Getenv("RYUK_RECONNECTION_TIMEOUT"))
	if err != nil {
		wait = 10 * time.Second
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":8080")
	if err != nil {
		return err
	}
	arrived, left, lines := make(chan struct{}), make(chan struct{}), make(chan string)
	go serve(l, arrived, left, lines)
	fmt.Println("Started") // the clients wait for this word
	filters, clients, end := map[string]bool{}, 0, time.NewTimer(firstClient)
	for {
		select {
		case <-arrived:
			clients++
			end.Stop()
		case <-left:
			if clients--; clients == 0 {
				end.Reset(wait)
			}
		case line := <-lines:
			filters[line] = true
		case <-end.C:
			for line := range filters {
				err = errors.Join(err, remove(ctx, line))
			}
			return err
		}
	}
}

// serve reads the lines of all clients, and sends their beginnings and ends.
func serve(l net.Listener, arrived, left chan<- struct{}, lines chan<- string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		arrived <- struct{}{}
		go func() {
			for s := bufio.NewScanner(conn); s.Scan(); {
				lines <- s.Text()
				if _, err := io.WriteString(conn, "ACK\n"); err != nil {
					break
				}
			}
			_ = conn.Close()
			left <- struct{}{}
		}()
	}
}

// remove removes the containers, networks and volumes that pass the filters of a line.
func remove(ctx context.Context, line string) error {
	values, err := url.ParseQuery(line)
	if err != nil {
		return err
	}
	filters, err := json.Marshal(values)
	if err != nil {
		return err
	}
	query := "filters=" + url.QueryEscape(string(filters))
	var containers []struct {
		ID     string // in the document it is Id
		Labels map[string]string
	}
	var networks []struct{ ID string }
	var volumes struct{ Volumes []struct{ Name string } }
	err = errors.Join(
		call(ctx, "GET", "/containers/json?all=1&"+query, &containers),
		call(ctx, "GET", "/networks?"+query, &networks),
		call(ctx, "GET", "/volumes?"+query, &volumes))
	for _, c := range containers {
		if c.Labels["org.testcontainers.ryuk"] == "true" {
			continue // this one
		}
		err = errors.Join(err, call(ctx, "DELETE", "/containers/"+c.ID+"?force=1&v=1", nil))
	}
	for _, n := range networks {
		err = errors.Join(err, call(ctx, "DELETE", "/networks/"+n.ID, nil))
	}
	for _, v := range volumes.Volumes {
		err = errors.Join(err, call(ctx, "DELETE", "/volumes/"+v.Name+"?force=1", nil))
	}
	return err
}

// call makes a request and reads the document of its answer.
func call(ctx context.Context, method, path string, into any) error {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", "/var/run/docker.sock")
	}}}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
