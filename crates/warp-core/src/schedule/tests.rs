pub(crate) mod build;
mod choices;
mod filters;
mod gangs;
mod preferences;
