package command

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/passphrase"
)

// remote says how a hub on another machine is reached.
type remote struct{ url, roots, cert, key, token string }

func (r *remote) flags(f *pflag.FlagSet) {
	f.StringVar(&r.url, "hub", "", "https://HOST:PORT of a hub on another machine, its --api-listen")
	f.StringVar(&r.roots, "ca", "", "with --hub: file with the hub's root")
	f.StringVar(&r.cert, "cert", "", "with --hub: file with the operator's certificate")
	f.StringVar(&r.key, "key", "", "with --hub: file with its key")
	f.StringVar(&r.token, "token-file", "", "with --hub: file, of mode 0600, with the operator's token")
}

// client is a client of the hub.
func (r *remote) client() (*api.Client, error) {
	if r.roots == "" || (r.cert == "") == (r.token == "") || (r.cert == "") != (r.key == "") {
		return nil, errors.New("--hub needs --ca, and either --cert and --key or --token-file")
	}
	to := api.Remote{URL: r.url}
	var err error
	if to.Roots, err = os.ReadFile(r.roots); err != nil {
		return nil, fmt.Errorf("the hub's root: %w", err)
	}
	if r.token != "" {
		token, err := passphrase.Read("the operator", r.token)
		if err != nil {
			return nil, err
		}
		to.Token = string(token)
		return api.NewRemote(to)
	}
	pair, err := tls.LoadX509KeyPair(r.cert, r.key)
	if err != nil {
		return nil, fmt.Errorf("the operator's certificate: %w", err)
	}
	to.Certificates = []tls.Certificate{pair}
	return api.NewRemote(to)
}
