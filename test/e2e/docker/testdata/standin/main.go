// Command standin is the program of images that take the place of public ones in the suites. Its
// own name selects what it does.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "hello":
		fmt.Println("\nHello from Docker!\nThis message shows that your installation appears to be working correctly.")
	case "curl":
		err = curl(os.Args[1:])
	case "nginx":
		err = nginx()
	case "redis-server":
		err = listens(":6379", "Ready to accept connections tcp")
	case "mysqld":
		err = listens(":3306", "port: 33060  MySQL Community Server - GPL", "ready for connections. port: 3306  MySQL Community Server - GPL")
	case "influxd":
		err = web(":8086", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	default:
		err = fmt.Errorf("standin has no program %s", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// curl writes the content of URLs to standard output. It ignores options.
func curl(args []string) error {
	for _, url := range args {
		if strings.HasPrefix(url, "-") {
			continue
		}
		resp, err := http.Get(url) //nolint:gosec,noctx // that is its purpose
		if err != nil {
			return err
		}
		if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
			return err
		}
		_ = resp.Body.Close()
	}
	return nil
}

var listen = regexp.MustCompile(`listen\s+(\d+)`)

// nginx serves /usr/share/nginx/html at the port of its configuration, and logs requests. NGINX_DELAY is a time that passes before. With
// -t it finds no fault in its configuration.
func nginx() error {
	if slices.Contains(os.Args[1:], "-t") {
		return nil
	}
	fmt.Println("/docker-entrypoint.sh: Configuration complete; ready for start up")
	if d, err := time.ParseDuration(os.Getenv("NGINX_DELAY")); err == nil {
		<-time.After(d)
	}
	port := "80"
	for _, name := range []string{"nginx.conf", "conf.d/default.conf"} {
		text, err := os.ReadFile("/etc/nginx/" + name)
		if m := listen.FindSubmatch(text); err == nil && m != nil {
			port = string(m[1])
		}
	}
	files := http.FileServer(http.Dir("/usr/share/nginx/html"))
	return web(":"+port, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Server", "nginx/1.27.0")
		files.ServeHTTP(w, req)
		fmt.Printf("%s - - [%s] \"%s %s %s\"\n", req.RemoteAddr, time.Now().Format("02/Jan/2006:15:04:05 -0700"), req.Method, req.URL, req.Proto)
	}))
}

// web serves HTTP until a signal ends it.
func web(addr string, h http.Handler) error {
	l, err := net.Listen("tcp", addr) //nolint:noctx,gosec // a server of a test's container
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, time.Now().Format("2006/01/02 15:04:05"), "[notice] 1#1: start worker processes")
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(l, h) }() //nolint:gosec // no timeouts are wanted
	select {
	case err := <-failed:
		return err
	case <-ends:
		return nil
	}
}

// listens accepts connections and answers each piece of input with a line, until a signal ends it. It writes lines to its log when it
// is ready.
func listens(addr string, lines ...string) error {
	l, err := net.Listen("tcp", addr) //nolint:noctx,gosec // a server of a test's container
	if err != nil {
		return err
	}
	for _, line := range lines {
		fmt.Println(line)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				buf := make([]byte, 4096)
				for {
					if _, err := conn.Read(buf); err != nil {
						return
					}
					if _, err := io.WriteString(conn, "+PONG\r\n"); err != nil {
						return
					}
				}
			}()
		}
	}()
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	<-ends
	return nil
}
