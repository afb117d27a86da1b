package cni

import (
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/longshore/longshore/internal/core"
)

// FuzzResult parses any output of a plugin.
func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/x"}],"ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1","interface":0}],"dns":{"nameservers":["1.1.1.1"]}}`))
	f.Add([]byte(`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24","interface":7}]}`))
	f.Add([]byte(`{"cniVersion":"1.0.0","interfaces":[null],"ips":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		res, err := types100.NewResult(data)
		if err != nil {
			return
		}
		var st core.NetworkStatus
		if _, err := collect(&st, "net", res); err != nil {
			return
		}
		for _, a := range st.Addrs {
			if !a.IsValid() {
				t.Errorf("an address that is none of %q", data)
			}
		}
	})
}
