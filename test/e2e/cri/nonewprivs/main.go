// Command nonewprivs is the entrypoint of an image of the CRI end-to-end test:
// set-user-ID root, it says as whom it runs.
package main

import (
	"fmt"
	"os"
)

func main() {
	_, _ = fmt.Fprintf(os.Stdout, "Effective uid: %d\n", os.Geteuid())
}
