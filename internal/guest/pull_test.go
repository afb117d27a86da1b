package guest

import "testing"

// FuzzPullMetadata: the options of a shim are read or refused.
func FuzzPullMetadata(f *testing.F) {
	for _, s := range []string{"{}", `{"metadata":{"io.kubernetes.cri.container-type":"sandbox"}}`, `{"metadata":7}`, ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		sandbox, err := pullMetadata([]string{driverPull + "=" + text})
		if sandbox && err != nil {
			t.Errorf("%q: both", text)
		}
	})
}
