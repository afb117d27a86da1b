package nodetest

import (
	"os"
	"testing"
)

// GrantedScript is for a shell that holds only its grants: it prints its argument, the files of its root, and a line of
// its first grant, all without another process. It ends with 9. In an ordinary container it has no argument and sees a
// root.
const GrantedScript = `read -r a <&3; echo "argument $a"; echo root /*; read -r s <&4; echo "line $s"; exit 9`

// ExampleScript is for a shell with the document of Example: it prints its argument, writes to its granted log, and
// waits for a request to stop. It ends with 5.
const ExampleScript = `read -r a <&3; echo "argument $a"; echo "given log" >&5; read -r s <&6; echo "asked $s"; exit 5`

// ExampleSays is its first output.
const ExampleSays = "argument {\"greeting\":\"hello\",\"listen\":{\"fd\":4},\"log\":{\"fd\":5},\"stop\":{\"fd\":6}}\n"

// Example is the document of contrib/grants.
func Example(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../contrib/grants/program.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
