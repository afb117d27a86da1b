package image

import "testing"

// TestNamesStoredAsTypedAreFound: versions before registries had a normal form stored the name as it
// was typed. Another registry's name is not found by it.
func TestNamesStoredAsTypedAreFound(t *testing.T) {
	o := &ownerRecord{names: map[string]nameRecord{"LOCALHOST:05000/a:latest": {}, "localhost:5000/b:latest": {}}}
	for ref, want := range map[string]string{
		"LOCALHOST:05000/a": "LOCALHOST:05000/a:latest", "localhost:5000/a": "LOCALHOST:05000/a:latest",
		"Localhost:5000/b": "localhost:5000/b:latest", "localhost:5001/a": "", "localhost:5000/c": "",
	} {
		named, err := normalize(ref, "")
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := o.storedAs(named.String()); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t", ref, got, ok)
		}
	}
}
