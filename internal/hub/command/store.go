package command

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/etcd"
	"github.com/longshore/longshore/internal/passphrase"
)

// storeFlags say where a hub's records are, and what wraps the key by which they are sealed.
type storeFlags struct {
	dir  string
	etcd etcd.Remote
	by   wrapFlags
}

// wrapFlags name a passphrase or a program.
type wrapFlags struct{ file, command string }

func (w *wrapFlags) flags(f *pflag.FlagSet, prefix, of string) {
	f.StringVar(&w.file, prefix+"passphrase-file", "", "file, of mode 0600, with the "+of+"passphrase that seals keys and secrets")
	f.StringVar(&w.command, prefix+"kms-command", "", "instead, the path of a "+of+"program that wraps and unwraps a key, for a key management service")
}

func (w wrapFlags) wrapping(prefix string) (by store.Wrapping, err error) {
	if (w.file == "") == (w.command == "") {
		return by, errors.New("either --" + prefix + "passphrase-file or --" + prefix + "kms-command is required to seal keys and secrets")
	}
	if by.Command = w.command; by.Command != "" {
		return by, nil
	}
	by.Passphrase, err = passphrase.Read("the hub's store", w.file)
	return by, err
}

func (s *storeFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.dir, "dir", DefaultDir, "directory of all of the hub's files; only its owner may enter it")
	etcdFlags(cmd, &s.etcd)
	s.by.flags(f, "", "")
}

// open is what a store is opened with; quota is Options.Quota of its database.
func (s *storeFlags) open(quota int64) (o store.Options, err error) {
	if o.Wrapping, err = s.by.wrapping(""); err != nil {
		return o, err
	}
	db := etcd.Options{Dir: s.dir, Quota: quota}
	db.Remote, err = named(&s.etcd)
	o.Open = db.Open
	return o, err
}

func (a *app) rekey() *cobra.Command {
	var at storeFlags
	var next wrapFlags
	cmd := &cobra.Command{
		Use: "rekey", Short: "Seal the records with another passphrase or program; a hub with its own database must be stopped", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o, err := at.open(0)
			if err != nil {
				return err
			}
			by, err := next.wrapping("new-")
			if err != nil {
				return err
			}
			o.Log = slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
			s, err := store.Open(cmd.Context(), o)
			if err != nil {
				return err
			}
			return errors.Join(s.Rekey(cmd.Context(), by), s.Close())
		},
	}
	at.flags(cmd)
	next.flags(cmd.Flags(), "new-", "next ")
	return cmd
}
