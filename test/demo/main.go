// Command demo serves an image of busybox from a registry on loopback, for
// make demo. It prints the image's name and serves until it is killed.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/nodetest"
)

func main() {
	built, err := nodetest.BusyboxImage()
	if err == nil {
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil { //nolint:noctx // for the program's whole life
			r, _ := imagetest.Serve(l)
			fmt.Println(r.Push("library/busybox", "latest", built))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
}
