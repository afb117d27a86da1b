package cli

import (
	"testing"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/listing"
	"github.com/longshore/longshore/internal/cli/present"
)

// TestContainersAreFoundByTheNameOfEachNetwork checks that the mode of the agent's network does not match.
func TestContainersAreFoundByTheNameOfEachNetwork(t *testing.T) {
	c := &longshorev1.Container{Id: "0123456789abcdef", Key: "web", State: "created", Network: "builtin", Networks: []string{"n", "bridge"}}
	for name, found := range map[string]bool{"n": true, "bridge": true, "default": true, "builtin": false, "other": false, "": false} {
		list, err := filterContainers([]*longshorev1.Container{c}, present.Filters{"network": {name}})
		if err != nil || (len(list) == 1) != found {
			t.Errorf("network=%s: %d containers, %v, want found %v", name, len(list), err, found)
		}
	}
	if row := listing.Container(c, false); row["Networks"] != "n,bridge" {
		t.Errorf("Networks: %v", row["Networks"])
	}
}
