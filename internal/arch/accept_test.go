package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// mayAccept are the files that call accept directly, and why.
var mayAccept = map[string]string{
	"internal/connlimit/listen.go":          "it closes an idle connection first; the call is below shortage.Accept",
	"internal/keeper/server/conn.go":        "its loop waits by epoll, and stops watching the socket during a shortage",
	"internal/keeper/server/launch.go":      "one connection, whose launch fails without it",
	"internal/grant/board/broker/broker.go": "its loop waits by epoll, and stops watching the socket during a shortage",
	"internal/grant/wasm/sock.go":           "the program makes the call, and is told the error",
	"internal/guest/vsock/vsock.go":         "it implements net.Listener; its callers use shortage.Accept",
}

// TestAcceptLoopsOutlastAShortage: a loop that ends, or that calls accept again at once, when no
// descriptors are left costs a service, or a processor. shortage.Accept does neither.
func TestAcceptLoopsOutlastAShortage(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		if forTests(s.rel) {
			continue
		}
		for _, found := range accepts(s.file) {
			if used[s.rel] = true; mayAccept[s.rel] == "" {
				t.Errorf("%s: %s: accept connections by shortage.Accept", s.rel, found)
			}
		}
	}
	for rel := range mayAccept {
		if !used[rel] {
			t.Errorf("%s accepts nothing any more: remove it from the list", rel)
		}
	}
}

// accepts returns the calls of a file that accept a connection. A method that is passed to
// shortage.Accept is not called.
func accepts(f *ast.File) (found []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name := sel.Sel.Name
		if name == "Accept" && len(call.Args) == 0 || slices.Contains([]string{"AcceptUnix", "AcceptTCP", "Accept4"}, name) || isCall(call, "unix", "Accept") || isCall(call, "syscall", "Accept") {
			found = append(found, name)
		}
		return true
	})
	return found
}

func TestAcceptsAreFound(t *testing.T) {
	const src = `package p
func good(l net.Listener) { shortage.Accept(l.Accept); ca.Accept(ctx, id) }
func bad(l net.Listener) {
	l.Accept()
	x.listener.Accept()
	u.AcceptUnix()
	u.AcceptTCP()
	unix.Accept4(3, 0)
	unix.Accept(3)
	syscall.Accept(3)
}
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Accept", "Accept", "AcceptUnix", "AcceptTCP", "Accept4", "Accept", "Accept"}
	if got := accepts(f); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
