// Command standin is the program of images that take the place of public ones in the suites. Its
// own name selects what it does.
package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "hello":
		fmt.Println("\nHello from Docker!\nThis message shows that your installation appears to be working correctly.")
	case "nginx":
		err := http.ListenAndServe(":80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintln(w, "<html><title>Welcome to nginx!</title><h1>Welcome to nginx!</h1></html>")
		}))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	default:
		fmt.Fprintf(os.Stderr, "standin has no program %s\n", name)
		os.Exit(127)
	}
}
