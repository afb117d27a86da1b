package core_test

import (
	"encoding/json"
	"testing"

	"github.com/longshore/longshore/internal/core"
)

// TestABlobIsStoredAsBytes: records with a Blob have the format of those with a []byte.
func TestABlobIsStoredAsBytes(t *testing.T) {
	const content = "\x00a spec\xff\n"
	blob, err := json.Marshal(struct{ B, E core.Blob }{B: content})
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := json.Marshal(struct{ B, E []byte }{B: []byte(content), E: []byte{}})
	if err != nil || string(blob) != string(bytes) {
		t.Fatalf("%s, and bytes are %s, %v", blob, bytes, err)
	}
	var back struct{ B, E core.Blob }
	if err := json.Unmarshal(bytes, &back); err != nil || back.B != content || back.E != "" {
		t.Errorf("%q, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"B":"no base64"}`), &back); err == nil {
		t.Error("wrong base64 was accepted")
	}
}
