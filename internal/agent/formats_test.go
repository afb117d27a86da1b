package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// TestFormatsAreDocumented compares docs/formats.md with the numbers of the code.
func TestFormatsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/formats.md")
	if err != nil {
		t.Fatal(err)
	}
	agents, keepers, found := strings.Cut(string(b), "## The keeper's formats")
	if !found {
		t.Fatal("no section of the keeper's formats")
	}
	has := func(text string, f handover.Format) {
		t.Helper()
		if !strings.Contains(text, fmt.Sprintf("\n| %s | %d | %d |", f.Name, f.Number, f.Oldest)) {
			t.Errorf("docs/formats.md lacks %+v", f)
		}
	}
	list := formats()
	for _, f := range list {
		has(agents, f)
	}
	if rows := strings.Count(agents, "\n| ") - 1; rows != len(list) {
		t.Errorf("docs/formats.md has %d formats of the agent, and the program %d", rows, len(list))
	}
	for _, f := range []handover.Format{
		{Name: "protocol", Oldest: wire.Oldest, Number: wire.Version},
		{Name: "plan", Oldest: 1, Number: plan.Version},
		{Name: "handover", Oldest: wire.OldestHandover, Number: wire.Handover},
		{Name: "nest", Oldest: wire.NestVersion, Number: wire.NestVersion},
	} {
		has(keepers, f)
	}
	release, stated, err := handover.ParseStatement(strings.TrimSpace(Formats("1.2")))
	if err != nil || release != "1.2" || len(stated) != len(list)+1 {
		t.Errorf("the statement: %q, %v", Formats("1.2"), err)
	}
	if f := stated[len(list)]; f != (handover.Format{Name: keeperFormat, Oldest: wire.Oldest, Number: wire.Version}) {
		t.Errorf("the keeper's protocol: %+v", f)
	}
	if err := handover.Readable(release, stated, list); err != nil {
		t.Errorf("an agent does not read its own formats: %v", err)
	}
}
