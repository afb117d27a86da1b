package docker_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// guide is the document with all known differences.
const guide = "../../docs/guide/docker-differences.md"

const guideHead = `# Differences from dockerd

` + "`make e2e-docker-beside`" + ` sends the same requests to dockerd 28 and to the Docker face, and compares statuses, headers, members, types
and the words of errors. These are all differences. An asterisk is any text; ` + "`$.A`" + ` is the member A of the answer. The list is
made from test/docker/differs_test.go by ` + "`LONGSHORE_UPDATE=1 go test ./test/docker`" + `.

`

// TestGuide checks that the guide has each known difference.
func TestGuide(t *testing.T) {
	var reasons []string
	at := map[string][]knownDifference{}
	for _, d := range slices.Concat(knownDifferences, rareDifferences) {
		if at[d.reason] == nil {
			reasons = append(reasons, d.reason)
		}
		at[d.reason] = append(at[d.reason], d)
	}
	var text strings.Builder
	text.WriteString(guideHead)
	for _, r := range reasons {
		fmt.Fprintf(&text, "- %s\n", r)
		for _, d := range at[r] {
			fmt.Fprintf(&text, "  - `%s`: `%s`\n", d.request, d.path)
		}
	}
	if os.Getenv("LONGSHORE_UPDATE") != "" {
		if err := os.WriteFile(guide, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != text.String() {
		t.Errorf("%s is not made from the table: run LONGSHORE_UPDATE=1 go test ./test/docker", guide)
	}
}
