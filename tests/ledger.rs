//! The weight ledger: accounts that must balance, and cuts for several ranks that must fit together again.

#[path = "ledger/accounts.rs"]
mod accounts;
#[path = "ledger/cuts.rs"]
mod cuts;
#[path = "ledger/full_size.rs"]
mod full_size;
#[path = "suites/synthetic.rs"]
mod synthetic;
