package access

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
)

// TestViaNamesTheUserOfACall in printable characters, and not at length.
func TestViaNamesTheUserOfACall(t *testing.T) {
	for sent, want := range map[string]string{
		"web page, 127.0.0.1":    ", for web page, 127.0.0.1",
		"a\x1b[31m\nb é":         ", for a?[31m?b ?",
		strings.Repeat("x", 999): ", for " + strings.Repeat("x", maxVia),
		"":                       "",
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(Via, sent))
		if got := StopRequest(ctx, "longshore stop"); got.User != want || got.Call != "longshore stop" {
			t.Errorf("%q: %q, want %q", sent, got.User, want)
		}
	}
	if got := StopRequest(t.Context(), "longshore stop"); got.User != "" {
		t.Errorf("without metadata: %q", got.User)
	}
}
