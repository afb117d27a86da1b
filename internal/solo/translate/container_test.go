package translate

import (
	"strings"
	"testing"
)

func TestMadeUpNamesAreValid(t *testing.T) {
	for image, want := range map[string]string{
		"redis": "redis-", "docker.io/library/redis:7@sha256:abc": "redis-", "127.0.0.1:5000/a/b:1": "b-", "@": "container-",
	} {
		if got := MadeUpName(image); !strings.HasPrefix(string(got), want) {
			t.Errorf("%s: %s", image, got)
		}
	}
}
