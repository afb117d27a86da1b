package sleep_test

import (
	"os"
	"testing"

	"github.com/longshore/longshore/internal/sleep/pages"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
)

// TestMain lets the test binary be the program that sleeps, the page server, and programs that sleep.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == pages.ArgSleep || os.Args[1] == pages.ArgServe) {
		os.Exit(pages.Main(os.Args[1:]))
	}
	if sleeptest.Main(os.Args) {
		os.Exit(0)
	}
	os.Exit(m.Run())
}
