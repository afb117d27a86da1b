package mesos

import (
	"testing"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestTheWireIsMesos: we have the table of the contract, and nothing else.
func TestTheWireIsMesos(t *testing.T) {
	wiretest.Compare(t, "testdata/numbers.txt", 900, mesosv1.File_mesos_v1_mesos_proto, mesosagent.File_mesos_v1_agent_agent_proto)
}
