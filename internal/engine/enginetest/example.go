package enginetest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// ExampleTB returns a testing.TB for New or Fakes in a godoc Example, which has no testing.T.
// Where a test would fail, it panics. The Example must call done at its end.
func ExampleTB() (tb testing.TB, done func()) {
	x := &exampleTB{}
	return x, x.done
}

type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (x *exampleTB) done() {
	for _, f := range slices.Backward(x.cleanups) {
		f()
	}
}

func (*exampleTB) Helper()                  {}
func (*exampleTB) Context() context.Context { return context.Background() }
func (x *exampleTB) Cleanup(f func())       { x.cleanups = append(x.cleanups, f) }

func (x *exampleTB) TempDir() string {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		x.Fatal(err)
	}
	x.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (*exampleTB) Error(args ...any)                 { panic(fmt.Sprint(args...)) }
func (*exampleTB) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*exampleTB) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (*exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
