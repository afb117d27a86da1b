package nomad

import (
	"testing"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	nomadhclspec "github.com/longshore/longshore/api/nomad/hclspec"
	nomadstructs "github.com/longshore/longshore/api/nomad/structs"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestTheWireIsNomads: we have the table of the contract, and nothing else.
func TestTheWireIsNomads(t *testing.T) {
	wiretest.Compare(t, "testdata/numbers.txt", 250,
		nomaddriver.File_nomad_driver_driver_proto, nomadbase.File_nomad_base_base_proto, nomadhclspec.File_nomad_hclspec_hcl_spec_proto,
		nomadstructs.File_nomad_structs_attribute_proto, nomadstructs.File_nomad_structs_recoverable_error_proto)
}
