package enginetest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// ExampleTB is what a godoc Example hands to New or Fakes, as it has no testing.T:
// where a test would fail, it panics. The Example calls done at its end.
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
