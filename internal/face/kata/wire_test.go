package kata

import (
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	katatypes "github.com/longshore/longshore/api/kata/v1/types"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestTheWireIsKatas: we have the table of the contract, and nothing else.
func TestTheWireIsKatas(t *testing.T) {
	wiretest.Compare(t, "testdata/numbers.txt", 500,
		katav1.File_kata_v1_agent_proto, katav1.File_kata_v1_oci_proto, katav1.File_kata_v1_csi_proto, katav1.File_kata_v1_health_proto, katatypes.File_kata_v1_types_proto)
}
