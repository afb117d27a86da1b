package swarm

import (
	"testing"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestTheWireIsSwarmKits: we have the table of the contract, and nothing else.
func TestTheWireIsSwarmKits(t *testing.T) {
	wiretest.Compare(t, "testdata/numbers.txt", 800,
		swarmv1.File_swarm_v1_dispatcher_proto, swarmv1.File_swarm_v1_ca_proto, swarmv1.File_swarm_v1_logbroker_proto, swarmv1.File_swarm_v1_resource_proto,
		swarmv1.File_swarm_v1_types_proto, swarmv1.File_swarm_v1_objects_proto, swarmv1.File_swarm_v1_specs_proto)
}
